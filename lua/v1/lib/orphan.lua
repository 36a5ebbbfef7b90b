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

-- Gives back what a lease owes, uncharged. Any of it may be to blame for the end of its worker, so each
-- comes back alone. But what its holder, who lives, never began comes back together with others like
-- it, if it was not charged before: that is what the moment 0 stands for.
local function give_back(consumer, now, is_unbegun)
  for _, entry in ipairs(pending_of(consumer)) do
    local together = is_unbegun and entry[4] <= 1
    orphan(entry[1], together and 0 or now, math.max(0, entry[4] - 1))
  end
end
