-- Ageing: if nothing of a request has started for as long as its `ageing`, one of its waiting permits goes to the most
-- urgent lane. So a request of any priority starts at least one slice in this time, and does not overtake the others for
-- longer than that.
-- @include lib/permits/first_permit.lua
-- @include lib/permits/queue_permit.lua

-- Returns when the request has waited for too long. A fence is at least the time of its acquire in us (lib/lease/acquire.lua).
-- `aged`: when a permit was last hastened, as text or nil.
local function aged_at(state, ageing, aged)
  return math.max(state.born, state.gate.opens, math.floor(state.seq / 1000), tonumber(aged) or 0) + tonumber(ageing)
end

-- Queues the permit that waits for longest in the most urgent lane; its former token goes stale. Returns the tokens.
local function hasten(state, now)
  local first, least
  local all = all_permits(state)
  for i = 1, #all, 2 do
    local g = tonumber(string.match(all[i + 1], "^q:(%d+)"))
    if g and all[i] ~= state.sleeper and (not least or g < least) then
      first, least = all[i], g
    end
  end
  local tokens, priority = {}, state.priority
  if first then
    state.priority = 0
    queue_permit(state, first, now, 0, tokens)
    state.priority = priority
  end
  return tokens
end
