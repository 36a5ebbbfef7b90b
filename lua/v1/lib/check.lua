-- Compares the counts of a request with its keys.
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/gate.lua
-- @include lib/reap.lua

-- ------------------------------------------------------------------ need of reap

-- Decides whether a request needs reap.

-- Returns true if reap must act: on a lease, a deadline or damage. If a lease ends later than a new one would, it is from
-- before the clock went back. So is a gate that opens too late, or a retry that is due too late.
local function needs_reap(state, at, open_until, first)
  local last = first and tonumber(redis.call("ZRANGE", leases, -1, -1, "WITHSCORES")[2])
  if last and last > latest_end(state, at) then
    return true
  end
  if first and first <= at or state.state == "expiring" or state.few == 2 and state.held == 0 then
    return true
  end
  if state.open == 1 and open_until < at and state.state ~= "cancelling" or state.state == "cancelling" and state.held == 0 then
    return true
  end
  if state.hold and state.hold < at then
    return true
  end
  if is_overdue(state, at) and (state.state == "active" or state.state == "paused") then
    return true
  end
  if is_ahead(state, at) then
    return true
  end
  local sleeping = state.sleeper ~= "" and 1 or 0
  if count_fields(state) < state.queued + state.held + sleeping then
    return true
  end
  local is_idle = state.state == "active" and state.held + state.queued + sleeping == 0
  if is_idle and ready(state, at) > 0 then
    return true
  end
  local left = state.few == 0 and tonumber(redis.call("GET", counter) or "")
  local over = left and settled_by(state, left)
  if not left or over < 0 or redis.call("EXISTS", stream) == 0 then
    return false
  end
  return over ~= state.done + state.dead or is_idle and state.gate.opens <= at and left > beside(state)
end

-- ------------------------------------------------------------------ counts

-- Counts for `check` what the permits and the stream really hold, so that it can compare them with the hash.
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
