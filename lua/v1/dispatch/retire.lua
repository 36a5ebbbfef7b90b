-- retire: moves ended requests from `active` to the completion log. The marker in `logged` keeps each of them to one
-- log entry, for any caller and any number of calls.
-- Says: = logged
-- @flags allow-oom
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local logged = KEYS[2]  -- {queue}:logged  zset  <id>|<born> -> when this marker may go, ms
local completed = KEYS[3]  -- {queue}:completed  stream  one entry per finished request
local conf = KEYS[4]  -- {queue}:conf  hash  waiting
local loads = KEYS[5]  -- {queue}:load  hash  request -> what it adds to what waits
local now = ARGV[1]  -- ms, "" = server time
local longer = tonumber(ARGV[2])  -- ms the marker stays longer than the tombstone
local most = tonumber(ARGV[3])  -- about how many entries the log keeps
local endings = 4  -- ARGV[4...]  for each: request, and the ten values of its summary (lib/core/state.lua)
-- @include lib/core/now_ms.lua
-- @include lib/create/backlog.lua
local SIZE, MOST = 11, 80

local size = #ARGV - endings + 1
if not longer or not most or size == 0 or size > MOST * SIZE then
  return redis.error_reply("BADARGUMENT retire wants two numbers, and 1 to 80 endings of 11 values")
end
for at = endings, #ARGV, SIZE do
  if not tonumber(ARGV[at + 10]) then
    return redis.error_reply("BADARGUMENT retire wants a number for how long a tombstone stays")
  end
end
now = now_ms(now)
local bounded = redis.call("EXISTS", loads) == 1

-- Logs the ending whose id is ARGV[at]. Returns true if the ending is new to the log; else false, and the error if the
-- log refused it. The marker is written first, because no ending may be logged twice, and deleted after an error.
local function log(at)
  local id, state, born, total, done, dead, cancelled, over, priority, reason, retain_ms = unpack(ARGV, at, at + 10)
  if redis.call("ZADD", logged, "NX", now + tonumber(retain_ms) + longer, id .. "|" .. born) == 0 then
    return false  -- and `active` is left alone: it may hold a new life of this id
  end
  local entry = redis.pcall("XADD", completed, "MAXLEN", "~", most, "*", "id", id, "state", state, "priority",
    priority, "total", total, "done", done, "dead", dead, "cancelled", cancelled, "born", born, "ended", over,
    "reason", reason)
  if type(entry) == "table" then
    redis.call("ZREM", logged, id .. "|" .. born)
    return false, entry
  end
  if bounded then
    change_load(id, read_load(id), nil)
  end
  return true
end

local ended, refused = {}, nil
for at = endings, #ARGV, SIZE do
  local is_new
  is_new, refused = log(at)
  if refused then
    break
  elseif is_new then
    ended[#ended + 1] = ARGV[at]
  end
end
if #ended > 0 then
  redis.call("ZREM", active, unpack(ended))
end
-- Deletes more markers than one call can add, because they would accumulate otherwise.
local old = redis.call("ZRANGEBYSCORE", logged, "-inf", now, "LIMIT", 0, 10 + 2 * #ended)
if #old > 0 then
  redis.call("ZREM", logged, unpack(old))
end
return refused or #ended
