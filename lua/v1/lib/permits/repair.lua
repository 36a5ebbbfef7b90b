-- After damage to tok:{id}, by hand or by a rollback, its request must still be able to end.
-- @include lib/permits/first_permit.lua
-- @include lib/permits/permits.lua
-- @include lib/permits/resize.lua
-- @include lib/entries/retry_queue.lua

-- Drops an expired lease whose permit is not held. Only a consumer of the stream still names the lease's holder.
local function drop_lease(state, now, k)
  local pending = unless_gone(redis.pcall("XPENDING", stream, stream))
  for _, row in ipairs(pending[4] or {}) do
    if string.match(row[1], "/([^/]*)$") == k then
      give_back(row[1], now)
      forget(row[1])
    end
  end
  redis.call("ZREM", leases, k)
  state.is_damaged = true
  state.held = redis.call("ZCARD", leases)
end

-- Counts the permits anew after a lease was dropped, or if there are fewer permits than the counts in the request's
-- hash. Does nothing while any lease lacks its permit, because that permit's number would be given out a second time.
local function recount_permits(state)
  local least = state.queued + state.held + (state.sleeper ~= "" and 1 or 0)
  if not state.is_damaged and count_fields(state) >= least then
    return
  end
  for _, k in ipairs(redis.call("ZRANGE", leases, 0, -1)) do
    if read_permit(k).kind ~= "h" then
      return
    end
  end
  local all, sleeper = all_permits(state), ""
  state.queued = 0
  for i = 1, #all, 2 do
    if string.sub(all[i + 1], 1, 2) == "q:" then
      if all[i] == state.sleeper then
        sleeper = all[i]
      else
        state.queued = state.queued + 1
      end
    end
  end
  state.sleeper = sleeper
  relink_parked(state)
end

-- Counts done, dead and what is undelivered anew, if the counter and the pending entries say otherwise. The hash has other
-- numbers after Redis refused a command in the middle of a script, and after a torn append-only file.
local function recount_entries(state)
  local left = state.few == 0 and tonumber(redis.call("GET", counter) or "")
  local over = left and state.total - (left - state.open)
  local pending = left and over >= 0 and unless_gone(redis.pcall("XPENDING", stream, stream)) or {}
  if not pending[1] then
    return
  end
  local fresh = math.max(0, left - state.open - pending[1])
  if state.is_damaged or over ~= state.done + state.dead or fresh ~= state.fresh then
    state.dead = math.min(over, math.max(state.dead, redis.call("XLEN", dead)))
    state.done = over - state.dead
    state.fresh = fresh
  end
end
