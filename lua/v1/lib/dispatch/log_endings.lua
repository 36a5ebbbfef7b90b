-- How ended requests move from `active` to the completion log.
-- @include lib/dispatch/backlog.lua

-- @rare
local function forget_load(id)
  change_load(id, read_load(id), nil)
end

-- `summary`: as lib/core/state.lua makes it. Its marker stays longer than the request's tombstone: as long again, but
-- between `least` and `longest` ms. Returns true if the ending is new to the log; else false, and the error if the log
-- refused it. The marker is written first, because no ending may be logged twice, and deleted after an error.
local function log_ending(now, id, summary, keep)
  local state, born, total, done, dead, cancelled, over, priority, reason, retain_ms = unpack(summary)
  local marker = id .. "|" .. born
  local until_ms = now + retain_ms + math.min(keep.longest, math.max(keep.least, tonumber(retain_ms)))
  if redis.call("ZADD", logged, "NX", string.format("%d", until_ms), marker) == 0 then
    return false  -- and `active` is left alone: it may hold a new life of this id
  end
  local entry = redis.pcall("XADD", completed, "MAXLEN", "~", keep.most, "*", "id", id, "state", state, "priority",
    priority, "total", total, "done", done, "dead", dead, "cancelled", cancelled, "born", born, "ended", over,
    "reason", reason)
  if type(entry) == "table" then
    redis.call("ZREM", logged, marker)
    return false, entry
  end
  if keep.is_bounded == nil then
    keep.is_bounded = redis.call("EXISTS", loads) == 1
  end
  if keep.is_bounded then
    forget_load(id)
  end
  return true
end

-- Removes the requests whose endings were logged. Deletes more markers than one call can add, because they would
-- accumulate otherwise.
local function drop_logged(now, ended)
  if #ended > 0 then
    redis.call("ZREM", active, unpack(ended))
  end
  local old = redis.call("ZRANGEBYSCORE", logged, "-inf", now, "LIMIT", 0, 10 + 2 * #ended)
  if #old > 0 then
    redis.call("ZREM", logged, unpack(old))
  end
end
