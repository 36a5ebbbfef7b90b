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
