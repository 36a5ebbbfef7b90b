-- Ends leases without a call of their holders.
-- @include lib/state.lua
-- @include lib/permits.lua
-- @include lib/entries.lua
-- @include lib/dead_letters.lua

-- ------------------------------------------------------------------ term

-- How long a lease lasts without a call of its holder: as long as the request's leases do, or a term of the holder's own.
local LONGEST_TERM = 86400000  -- settings.LONGEST_TERM_MS

local function term_error(term)
  local ms = tonumber(term)
  if term ~= "" and not (ms and ms >= 1 and ms <= LONGEST_TERM) then
    return redis.error_reply("BADARGUMENT extend wants a term from 1 ms to a day, or none")
  end
end

-- Returns when a lease ends that is extended now. A longer term than the request's is noted in the request's hash:
-- such a lease is not from before the clock went back.
local function extended_until(state, now, term)
  local ms = tonumber(term) or state.lease_ms
  if ms > state.lease_ms and ms > tonumber(redis.call("HGET", request, "term") or 0) then
    redis.call("HSET", request, "term", string.format("%d", ms))
  end
  return string.format("%d", now + ms)
end

-- Returns the latest end of a lease that is granted or extended now.
local function latest_end(state, now)
  return now + math.max(state.lease_ms, tonumber(redis.call("HGET", request, "term") or 0))
end

-- ------------------------------------------------------------------ repair

-- After damage to tok:{id}, by hand or by a rollback, its request must still be able to end.

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
  local over = left and settled_by(state, left)
  local pending = left and over >= 0 and unless_gone(redis.pcall("XPENDING", stream, stream)) or {}
  if not pending[1] then
    return
  end
  local fresh = math.max(0, left - beside(state) - pending[1])
  if state.is_damaged or over ~= state.done + state.dead or fresh ~= state.fresh then
    state.dead = math.min(over, math.max(state.dead, redis.call("XLEN", dead)))
    state.done = over - state.dead
    state.fresh = fresh
  end
end

-- ------------------------------------------------------------------ charge a death

-- Charges an attempt to a sub-request whose handler's process died.

-- Returns the delay before the next attempt: 0 after the first death, then the request's backoff. Otherwise a body that
-- kills its workers would kill them as fast as they can be started.
local function death_delay(state, attempt)
  if attempt <= 1 then
    return 0
  end
  return math.min(state.backoff_max, state.backoff_min * 2 ^ math.min(30, attempt - 2))
end

-- `how` is how its process ended; "" = unknown.
local function charge(state, now, entry, worker, how)
  local id, attempt = entry[1], entry[4]
  local head = string.match(id, "-(%d+)$") .. ":x:" .. attempt .. ":0:0"
  local text = how ~= "" and "the process of the handler ended by " .. how or "the worker died or let its lease expire"
  note_failure(now, 1, head, text)
  if attempt >= state.attempts then
    bury(state, id, {head = head, reason = "died", worker = worker, error = text})
  else
    orphan(id, now + death_delay(state, attempt), attempt)
  end
end

-- ------------------------------------------------------------------ take back

-- Takes back the leases that a reap names. One call moves about 1,000 entries; later calls do the rest.
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
      release_permit(state, k, permit)
      moved = moved + #owed
    end
  end
  return false
end

-- ------------------------------------------------------------------ deadline

-- After the deadline, makes dead what still waits: a bounded number a call, the rest in later calls.
local function bury_late(state, now, id, attempt)
  local submitted, index = string.match(id, "^(%d+)-(%d+)$")
  local waited = math.max(0, now - tonumber(submitted))
  bury(state, id, {head = index .. ":x:" .. attempt .. ":" .. waited .. ":0", reason = "deadline", worker = "-",
    error = "the request's deadline passed before it could start"})
end

local function bury_the_rest(state, now)
  local room = math.max(1, math.min(BITE, math.floor(4 * SLICE_BYTES / math.max(1, state.max_body))))
  for _, entry in ipairs(pending_of("-")) do
    if room == 0 then
      return true
    end
    bury_late(state, now, entry[1], entry[4])
    room = room - 1
  end
  local fresh = room > 0 and read_fresh("-", room) or {}
  for _, entry in ipairs(fresh) do
    bury_late(state, now, entry[1], 0)
  end
  state.fresh = state.fresh - #fresh
  return #fresh == room
end
