-- The sub-requests of a request while they wait or are leased.
-- @include lib/state.lua
-- @include lib/permits.lua

-- ------------------------------------------------------------------ add

-- Appends list[first..last] to the stream. An entry's id is <ms>-<index>: when it was submitted, and which line of the
-- input it is. Such an id is no longer than an automatic one.
local MAX_ENTRIES = 1000

local function entry_error(first, last)
  local count = last - first + 1
  if count > MAX_ENTRIES then
    return redis.error_reply("BADCHUNK " .. count .. " sub-requests in one call; the most is " .. MAX_ENTRIES)
  end
end

local function add_entries(state, now, list, first, last)
  state.last_ms = math.max(now, state.last_ms)  -- ids must grow, whatever the clock does
  local format, most = string.format, state.max_body
  local id, index = format("%.0f-%%d", state.last_ms), state.total  -- format is quicker than `..` with a number
  for i = first, last do
    local body = list[i]
    redis.call("XADD", stream, format(id, index), "b", body)
    most = math.max(most, #body)
    index = index + 1
  end
  local count = index - state.total
  state.total, state.fresh, state.max_body = index, state.fresh + count, most
  return count
end

-- ------------------------------------------------------------------ rights

-- Runs, in a form that changes nothing, the commands that must follow when entries are added. So if Redis refuses one
-- of these commands, it does so before the first entry is added. `word` is the state in the hash.
local function prove(state, now, word)
  redis.call("HSET", request, "state", word)
  redis.call("INCRBY", counter, 0)
  ready(state, now)
end

-- ------------------------------------------------------------------ few bodies

-- A stream takes 4 KiB for its first entry, and time to make and to delete. So the few sub-requests of a small request
-- wait in one string, "<length>:<body>" each. `few` in the counts is 1 while they wait, and 2 while one lease holds all
-- of them. The request then has no stream and no counter, and the lease may settle all of them as done in one call. Any
-- other call first pours them into a stream, as any other request has; then `few` is 0.
local FEW = 10
local FEW_BYTES = 1024

local function are_few(list, first, last)
  if last - first + 1 > FEW then
    return false
  end
  local bytes = 0
  for i = first, last do
    bytes = bytes + #list[i]
  end
  return bytes <= FEW_BYTES
end

local function keep_few(state, now, list, first, last)
  local parts = {}
  for i = first, last do
    parts[#parts + 1] = #list[i] .. ":" .. list[i]
    state.max_body = math.max(state.max_body, #list[i])
  end
  redis.call("SET", few, table.concat(parts))
  state.total, state.fresh, state.few, state.last_ms = #parts, #parts, 1, now
end

local function read_few(state)
  local text = state.few > 0 and redis.call("GET", few)
  if not text then  -- or they were deleted: then there is no stream either
    return nil
  end
  local entries, prefix, at = {}, string.format("%.0f-", state.last_ms), 1
  while at <= #text do
    local _, colon, length = string.find(text, "^(%d+):", at)
    at = colon + 1 + length
    entries[#entries + 1] = {prefix .. #entries, {"b", string.sub(text, colon + 1, at - 1)}}
  end
  return entries
end

local function pour(state)
  local entries = read_few(state)
  if not entries then
    return
  end
  redis.call("UNLINK", stream, results)  -- left by a call that was refused in the middle
  redis.call("SET", counter, state.total + state.open)
  for _, entry in ipairs(entries) do
    redis.call("XADD", stream, entry[1], unpack(entry[2]))
  end
  redis.call("XGROUP", "CREATE", stream, stream, "0")
  if state.few == 2 then
    local k = redis.call("ZRANGE", leases, 0, 0)[1]
    local permit = k and read_permit(k)
    if permit and permit.kind == "h" then
      redis.call("XREADGROUP", "GROUP", stream, consumer_of(permit, k), "STREAMS", stream, ">")
    else
      state.fresh = state.total  -- its lease or permit was deleted: no lease holds them
    end
  end
  state.few = 0
  save_state(state)  -- before the bodies go, because the state says where they are
  redis.call("UNLINK", few)
end

-- ------------------------------------------------------------------ pending entries

-- Makes an entry wait in `retry` under consumer "-". So a permit's consumer always holds exactly what its lease
-- still owes.
local function orphan(id, due, count)
  redis.call("ZADD", retries, due, id)  -- first: if XCLAIM fails, the entry is still found
  redis.call("XCLAIM", stream, stream, "-", 0, id, "RETRYCOUNT", count, "JUSTID")
end

-- Returns the reply of XPENDING, {} if the stream was deleted. Raises any other error, because a refused
-- command must not look like a deleted stream.
local function unless_gone(pending)
  if not pending.err then
    return pending
  elseif string.find(pending.err, "NOGROUP", 1, true) then
    return {}
  end
  error(pending.err, 0)
end

-- Returns what a consumer still holds: a list of {id, consumer, idle, delivery count}.
local function pending_of(consumer)
  return unless_gone(redis.pcall("XPENDING", stream, stream, "-", "+", 1000, consumer))
end

-- Deletes a consumer that holds nothing any more.
local function forget(consumer)
  redis.pcall("XGROUP", "DELCONSUMER", stream, stream, consumer)
end

-- Gives back what a lease owes, uncharged. Any entry may have caused the end of its worker, so each comes back
-- alone. Entries that a live holder never began, and that were never charged, may come back together: they are due at 0.
-- @rare
local function give_back(consumer, now, is_unbegun)
  for _, entry in ipairs(pending_of(consumer)) do
    local together = is_unbegun and entry[4] <= 1
    orphan(entry[1], together and 0 or now, math.max(0, entry[4] - 1))
  end
end

-- ------------------------------------------------------------------ retries

-- `retry` maps each entry that waits for another attempt to its due time. Entries due at 0 were given back uncharged.
local SLICE_BYTES = 4 * 1024 * 1024  -- the most bodies of a slice

-- Returns the next retry that is due, and whether it may be delivered together with others. Those come first.
local function due_retry(state, now)
  local due = state.has_no_retries and {} or redis.call("ZRANGEBYSCORE", retries, "-inf", now, "WITHSCORES", "LIMIT", 0, 1)
  return due[1], due[2] == "0"
end

-- Takes from `retry` the entries that may be delivered together; returns nil if the stream was deleted.
-- @rare
local function take_uncharged(state, consumer, count)
  local all = redis.call("ZCOUNT", retries, 0, 0)
  count = math.min(count, math.ceil((state.fresh + all) / state.limit))
  count = math.max(1, math.min(count, math.floor(SLICE_BYTES / math.max(1, state.max_body))))
  local ids = redis.call("ZRANGEBYSCORE", retries, 0, 0, "LIMIT", 0, count)
  local entries = redis.pcall("XCLAIM", stream, stream, consumer, 0, unpack(ids))
  if entries.err then
    return nil
  end
  redis.call("ZREM", retries, unpack(ids))
  return entries
end

-- Takes one retry; returns it and the number of this attempt, or nil if the stream was deleted.
-- @rare
local function take_retry(consumer, due)
  local entries = redis.pcall("XCLAIM", stream, stream, consumer, 0, due)
  if entries.err then
    return nil
  end
  local pending = redis.call("XPENDING", stream, stream, due, due, 1)
  redis.call("ZREM", retries, due)
  return entries, pending[1] and pending[1][4] or 1
end

-- ------------------------------------------------------------------ slice

-- A slice is one of three: a due retry alone, because the death of its worker must be charged; sub-requests that
-- holders gave back uncharged; or fresh ones. It has at most ceil(ready / limit) sub-requests, so that other permits
-- get their share, and about 4 MiB of bodies.

local function read_fresh(consumer, count)
  local read = redis.pcall("XREADGROUP", "GROUP", stream, consumer, "COUNT", string.format("%d", count), "STREAMS", stream, ">")
  if read and read.err then
    return nil
  end
  return read and read[1] and read[1][2] or {}
end

local function read_within(consumer, count, step)
  local entries, bytes = {}, 0
  while #entries < count and bytes < SLICE_BYTES do
    local read = read_fresh(consumer, math.min(step, count - #entries))
    if not read or #read == 0 then
      return read and entries
    end
    for _, entry in ipairs(read) do
      entries[#entries + 1] = entry
      bytes = bytes + #entry[2][2]
    end
  end
  return entries
end

-- Returns the entries and the number of their attempt. Returns nil if the stream was deleted; nothing was written then.
local function take_slice(state, now, consumer, count)
  local due, is_uncharged = due_retry(state, now)
  if is_uncharged then
    return take_uncharged(state, consumer, count), 1
  elseif due then
    return take_retry(consumer, due)
  end
  count = math.min(count, math.ceil(state.fresh / state.limit))
  if state.few == 1 and count == state.fresh then
    local entries = read_few(state)
    state.few, state.fresh = 2, 0
    return entries, 1
  end
  pour(state)
  local entries
  if count * state.max_body <= SLICE_BYTES then
    entries = read_fresh(consumer, count)
  else
    entries = read_within(consumer, count, math.max(1, math.floor(SLICE_BYTES / 4 / state.max_body)))
  end
  state.fresh = state.fresh - (entries and #entries or 0)
  return entries, 1
end

-- Returns the entries that the consumer already holds, for a repeated acquire.
-- @rare
local function taken_before(state, consumer)
  if state.few == 2 then
    return read_few(state) or {}, 1
  end
  local entries, attempt = {}, 1
  for i, pending in ipairs(pending_of(consumer)) do
    entries[i] = redis.call("XRANGE", stream, pending[1], pending[1])[1]
    attempt = pending[4]
  end
  return entries, attempt
end

-- Returns the reply of acquire, with all that the worker needs of the request.
local function granted(s, at, permit, attempt, entries, tokens)
  local uncharged = s.has_no_retries and 0 or redis.call("ZCOUNT", retries, 0, 0)
  local policy = {at, s.born, s.lease_ms, s.attempts, s.backoff_min, s.backoff_max, s.priority, s.time_limit_ms,
    s.durable, s.fresh + uncharged, s.trace or "", s.redact}
  return {"ok", permit.fence, attempt, policy, entries, tokens}
end

-- ------------------------------------------------------------------ count down

-- Counts sub-requests that are over. They leave both the counter and the stream's group, or neither.

-- Raises an error if Redis refuses XACK, and acknowledges nothing. The check must come before a result is written.
local function check_acknowledge()
  redis.call("XACK", stream, stream, "0-0")
end

-- Called after a refused command. Deletes what was written about the sub-requests, because they will run again. Then
-- raises the error. `stored`: entries of `out`; `kept`: an entry of `dead`, or nil.
local function undo(refused, stored, kept)
  redis.call("XDEL", results, unpack(stored))
  if kept then
    redis.call("XDEL", dead, kept)
  end
  error(refused.err, 0)
end

-- Acknowledges the entries `...`; returns how many were pending: `count`, unless the stream is damaged.
local function count_down(state, count, stored, kept, ...)
  local left = redis.pcall("DECRBY", counter, count)
  if type(left) == "table" then
    undo(left, stored, kept)
  end
  local acked = redis.call("XACK", stream, stream, ...)
  state.left = acked == count and left or redis.call("DECRBY", counter, acked - count)
  return acked
end
