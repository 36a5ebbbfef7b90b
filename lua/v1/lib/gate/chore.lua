-- What a request needs besides reap: to be hastened, or to be started after others, or to be fed.
-- feed = what it gets (done, dead, join, array or gather), the requests that it gets this from, stop or continue for each,
-- the request that must not fall too far behind (- = none), how many results make a body, and what is written around them.
-- @include lib/gate/ageing.lua
-- @include lib/permits/mint.lua
local POLL, POLL_MOST = 1000, 5000  -- ms between two looks at the requests that this one waits for, more as it gets older

-- Returns what a leading worker must do for the request besides reap, and the ms until the next look.
local function chore_of(state, at, after, ageing, aged, feed)
  local fed, most = nil, math.huge
  if feed and state.open == 1 and state.state ~= "cancelling" then
    fed, most = "feed", math.min(POLL_MOST, math.max(POLL, (at - state.born) / 200))
  end
  if state.gate.opens == NEVER then
    return after, math.min(POLL_MOST, math.max(POLL, (at - state.born) / 20))
  elseif not ageing or state.queued == 0 then  -- nothing is queued if it is not active
    return fed, math.min(most, tonumber(ageing) or most)
  end
  local due = aged_at(state, ageing, aged)
  if due <= at then
    return "aged", tonumber(ageing)
  end
  return fed, math.min(most, due - at)
end
