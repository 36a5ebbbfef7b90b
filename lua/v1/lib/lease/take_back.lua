-- Takes back the leases that a reap names. One call moves about 1,000 entries; later calls do the rest.
-- @include lib/permits/permits.lua
-- @include lib/permits/repair.lua
-- @include lib/entries/inline_bodies.lua
-- @include lib/entries/retry_queue.lua
-- @include lib/lease/charge_death.lua
-- @include lib/extend/term.lua
local BITE = 1000

local function named_leases(now, which)
  if which.worker == "" then
    return redis.call("ZRANGEBYSCORE", leases, "-inf", now, "LIMIT", 0, 100)
  elseif which.k ~= "" then
    return {which.k}
  end
  return redis.call("ZRANGE", leases, 0, -1)
end

local function is_named(permit, which)
  if permit.kind ~= "h" or which.worker == "" then
    return permit.kind == "h"
  end
  return permit.worker == which.worker and permit.started == which.started
    and (which.fence == "" or permit.fence == which.fence)
end

-- Shortens each lease that ends later than a new one would, which happens after the clock went back.
local function bound_leases(state, now)
  local latest = string.format("%d", latest_end(state, now))
  for _, k in ipairs(redis.call("ZRANGEBYSCORE", leases, "(" .. latest, "+inf", "LIMIT", 0, 1000)) do
    redis.call("ZADD", leases, latest, k)
  end
end

local function take_back(state, now, which)
  local moved = 0
  if which.worker == "" then
    bound_leases(state, now)
  end
  for _, k in ipairs(named_leases(now, which)) do
    local permit = read_permit(k)
    if permit.kind ~= "h" and which.worker == "" then
      pour(state)
      drop_lease(state, now, k)
    elseif is_named(permit, which) then
      if moved >= BITE then
        return true
      end
      pour(state)
      local consumer = consumer_of(permit, k)
      local owed = pending_of(consumer)
      if #owed == 1 and (permit.shared ~= "1" or which.is_one) then  -- is_one: its supervisor reports that the handler ran
        charge(state, now, owed[1], permit.worker, which.how)
      else
        give_back(consumer, now)
      end
      forget(consumer)
      release_permit(state, k)
      moved = moved + #owed
    end
  end
  return false
end
