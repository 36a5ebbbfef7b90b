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
