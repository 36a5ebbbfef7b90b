-- A slice is one of three: a due retry alone, because the death of its worker must be charged; sub-requests that
-- holders gave back uncharged; or fresh ones. It has at most ceil(ready / limit) sub-requests, so that other permits
-- get their share, and about 4 MiB of bodies.
-- @include lib/entries/take_retries.lua
-- @include lib/entries/inline_bodies.lua
-- @include lib/entries/retry_queue.lua

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
    s.durable, s.fresh + uncharged, s.trace or ""}
  return {"ok", permit.fence, attempt, policy, entries, tokens}
end
