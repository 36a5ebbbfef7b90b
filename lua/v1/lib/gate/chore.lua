-- What a request needs besides reap: to be hastened, or to be started after others.
-- @include lib/gate/ageing.lua
-- @include lib/permits/mint.lua
local POLL, POLL_MOST = 1000, 5000  -- ms between two looks at the requests that this one waits for

-- Returns what a leading worker must do for the request besides reap, and the ms until the next look.
local function chore_of(state, at, after, ageing, aged)
  if after and state.opens == NEVER then
    return after, math.min(POLL_MOST, math.max(POLL, (at - state.born) / 20))
  elseif not ageing or state.state ~= "active" or state.queued == 0 then
    return nil, ageing and tonumber(ageing) or math.huge
  end
  local due = aged_at(state, ageing, aged)
  if due <= at then
    return "aged", tonumber(ageing)
  end
  return nil, due - at
end
