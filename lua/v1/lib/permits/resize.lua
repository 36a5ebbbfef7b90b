-- Fits the permits to a new limit. Afterwards no permit at or above the limit is queued or in the parked list, and no
-- more permits are awake than there is room and work for. Held ones stay until they are released: see release_permit.
-- `high` stays: numbers between a lowered limit and `high` have no field unless they are held, and
-- come back into the parked list when the limit is raised again.
-- @include lib/permits/first_permit.lua
-- @include lib/permits/permits.lua
-- @include lib/permits/mint.lua
local function park_surplus(state, now, all)
  local awake = {}
  for i = 1, #all, 2 do
    local k, g = all[i], string.match(all[i + 1], "^q:(%d+)")
    if g and tonumber(k) >= state.limit then
      unqueue(state, k)
      park(state, k)
    elseif g and state.sleeper ~= k then
      awake[#awake + 1] = {k = k, g = tonumber(g)}
    end
  end
  table.sort(awake, function(one, other) return one.g < other.g end)
  for i = math.max(0, math.min(state.limit - state.held, ready(state, now))) + 1, #awake do
    unqueue(state, awake[i].k)  -- the newest: the tokens of the others come first in their lane
    park(state, awake[i].k)
  end
end

local function relink_parked(state)
  local used, all = {}, all_permits(state)
  for i = 1, #all, 2 do
    local k, kind = tonumber(all[i]), string.sub(all[i + 1], 1, 1)
    if k and kind == "p" and k >= state.limit then
      redis.call("HDEL", permits, all[i])
    elseif k and kind ~= "p" then
      used[k] = true
    end
  end
  state.free = ""
  for k = math.min(state.high, state.limit) - 1, 0, -1 do
    if not used[k] then
      redis.call("HSET", permits, k, "p:" .. state.free)
      state.free = tostring(k)
    end
  end
end

local function resize(state, now)
  ready(state, now)  -- refused, if at all, before anything is parked
  park_surplus(state, now, all_permits(state))
  relink_parked(state)
end
