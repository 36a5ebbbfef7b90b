-- Counts for `check` what the permits and the stream really hold, so that it can compare them with the hash.
-- @include lib/permits/first_permit.lua
-- @include lib/permits/permits.lua
local function count_permits(state)
  local seen = {held = 0, queued = 0, sleeping = 0, parked = 0, listed = 0, owed = 0, lost = 0}
  local all, fields = {}, all_permits(state)
  for i = 1, #fields, 2 do
    all[fields[i]] = parse_permit(fields[i + 1])
  end
  for k, permit in pairs(all) do
    if permit.kind == "h" then
      seen.held = seen.held + 1
      seen.owed = seen.owed + permit.owed
    elseif permit.kind == "q" and state.sleeper == k then
      seen.sleeping = seen.sleeping + 1
    elseif permit.kind == "q" then
      seen.queued = seen.queued + 1
    elseif permit.kind == "p" then
      seen.parked = seen.parked + 1
    end
  end
  for k = 0, math.min(state.high, state.limit) - 1 do
    if not all[tostring(k)] then
      seen.lost = seen.lost + 1
    end
  end
  local k = state.free
  while k ~= "" and seen.listed <= seen.parked do
    seen.listed = seen.listed + 1
    k = string.sub(redis.call("HGET", permits, k) or "p:", 3)
  end
  return seen
end

local function count_entries()
  local pending = redis.call("XPENDING", stream, stream)
  local orphans = 0
  for _, consumer in ipairs(pending[4] or {}) do
    if consumer[1] == "-" then
      orphans = tonumber(consumer[2])
    end
  end
  return {stream = redis.call("XLEN", stream), pending = pending[1], orphans = orphans}
end
