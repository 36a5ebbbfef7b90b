-- drop_active: removes an entry from `active`, unless its score has changed since the caller read it. A fraction in the
-- score marks a request that a check has found; an intent has a whole score. If such a request is gone, it is logged as
-- `lost`: once, by the call that removes the entry. If the log refuses this, the entry stays.
-- Says: = dropped
--   dropped = 1, or 0 if the entry has another score
-- @flags allow-oom
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local completed = KEYS[2]  -- {queue}:completed  stream  one entry per finished request
local conf = KEYS[3]  -- {queue}:conf  hash  waiting
local loads = KEYS[4]  -- {queue}:load  hash  request -> what it adds to what waits
local now = ARGV[1]  -- ms, "" = server time
local id = ARGV[2]  -- request
local seen = tonumber(ARGV[3])  -- the score that was looked at
local gone = ARGV[4]  -- "1" = there is no such request
local most = tonumber(ARGV[5])  -- about how many entries the log keeps
-- @include lib/core.lua
-- @include lib/queue.lua

if not most then
  return redis.error_reply("BADARGUMENT drop_active wants a number for most")
end
if not seen or tonumber(redis.call("ZSCORE", active, id)) ~= seen then
  return 0
end
redis.call("ZREM", active, id)
if gone == "1" and seen % 1 ~= 0 then
  local logged = redis.pcall("XADD", completed, "MAXLEN", "~", most, "*", "id", id, "state", "lost", "priority", 0,
    "total", 0, "done", 0, "dead", 0, "cancelled", 0, "born", 0, "ended", now_ms(now), "reason", "gone from Redis")
  if type(logged) == "table" then
    redis.call("ZADD", active, ARGV[3], id)
    return logged
  end
end
change_load(id, read_load(id), nil)
return 1
