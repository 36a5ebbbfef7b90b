-- An entry that waits in `retry` belongs to consumer "-": so a permit's consumer always holds
-- exactly what its lease still owes.
local function orphan(id, due, count)
  redis.call("XCLAIM", stream, stream, "-", 0, id, "RETRYCOUNT", count, "JUSTID")
  redis.call("ZADD", retries, due, id)
end

-- What a consumer still holds: a list of {id, consumer, idle, delivery count}.
local function pending_of(consumer)
  local pending = redis.pcall("XPENDING", stream, stream, "-", "+", 1000, consumer)
  return pending.err and {} or pending
end

-- A consumer that holds nothing any more leaves.
local function forget(consumer)
  redis.pcall("XGROUP", "DELCONSUMER", stream, stream, consumer)
end

-- Gives back what a lease owes, uncharged: nobody knows that any of it is to blame.
local function give_back(consumer, now)
  for _, entry in ipairs(pending_of(consumer)) do
    orphan(entry[1], now, math.max(0, entry[4] - 1))
  end
end
