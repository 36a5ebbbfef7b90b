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
