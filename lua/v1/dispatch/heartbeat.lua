-- heartbeat: renews a worker's record, renews or passes on the maintenance lock, and returns what is due next. So
-- workers need no other poll.
-- Says: ok leads now active_due delayed_due oldest_beat shards left died tick_due paused_until rate orders | drain | unknown | replaced
--   active_due, delayed_due, tick_due = 0: nothing is due; shards, left = as in set_shards
--   died = when a beat last reported that tokens may be lost, 0 = never
--   paused_until = when the pause of the queue ends, 0 = it is not paused; rate = as rate_queue wrote it, "" = none
--   orders = how many orders the queue's workers ever had
--   drain: the worker's record was deleted; unknown: it is gone or has expired, so the worker registers again
--   replaced: another process has the name
-- @flags allow-oom
local workers = KEYS[1]  -- {queue}:workers  zset  worker -> last beat, ms
local worker = KEYS[2]  -- {queue}:worker:<host:port>  hash  host, pid, started, renewed
local active = KEYS[3]  -- {queue}:active  zset  request -> when to look at it next, ms
local delayed = KEYS[4]  -- {queue}:delayed  zset  <priority>|<token> -> due, ms
local conf = KEYS[5]  -- {queue}:conf  hash  lock, lock_until, shards, left, died, paused_until, rate, orders
local taken = KEYS[6]  -- {queue}:taken:<host:port>  hash  unit -> the tokens it took last
local ticks = KEYS[7]  -- {queue}:ticks  zset  schedule -> its next tick, ms
local firing = KEYS[8]  -- {queue}:firing  hash  see lib/queue.lua
local now = ARGV[1]  -- ms, "" = server time
local id = ARGV[2]  -- host:port
local started = ARGV[3]  -- ms
local ttl = tonumber(ARGV[4])  -- ms the record outlives its last beat
local lock_ms = tonumber(ARGV[5])  -- ms the maintenance lock outlives its holder
local holds = ARGV[6]  -- words for people: what the worker holds
local taken_ttl = tonumber(ARGV[7])  -- ms that what the worker took outlives its last beat
local died = ARGV[8]  -- "1" = a process of the worker died or lost its connection, perhaps with tokens
-- @include lib/core.lua
-- @include lib/queue.lua

if not ttl or not lock_ms or not taken_ttl then
  return redis.error_reply("BADARGUMENT heartbeat wants numbers for ttl, lock_ms and taken_ttl")
end
local mine = redis.call("HGET", worker, "started")
now = now_ms(now)
if not mine then
  -- If the last beat is recent, the record was deleted. If it is old, the record expired while Redis or the
  -- worker was away. A beat that lies far ahead is from before the clock went back.
  local beaten = tonumber(redis.call("ZSCORE", workers, id))
  return {beaten and math.abs(now - beaten) < ttl and "drain" or "unknown"}
end
if mine ~= started then
  return {"replaced"}
end
redis.call("HSET", worker, "renewed", now, "holds", holds)
redis.call("PEXPIRE", worker, ttl)
redis.call("PEXPIRE", taken, taken_ttl)
redis.call("ZADD", workers, now, id)
if died == "1" then
  redis.call("HSET", conf, "died", now)
end
local lock = redis.call("HMGET", conf, "lock", "lock_until", "shards", "left", "died", "paused_until", "rate",
  "orders")
local leads = may_lead(id, now, lock_ms, lock[1], lock[2])
if leads then
  lead(conf, id, now, lock_ms)
  -- If the clock went back, no beat may lie ahead of it: a worker that died would be detected too late.
  for _, other in ipairs(redis.call("ZRANGEBYSCORE", workers, "(" .. now, "+inf", "LIMIT", 0, 100)) do
    redis.call("ZADD", workers, now, other)
  end
end
local due = active_due(now)
local delays = score_of(redis.call("ZRANGE", delayed, 0, 0, "WITHSCORES"))
local oldest = score_of(redis.call("ZRANGE", workers, 0, 0, "WITHSCORES"))
local tick = beat_ticks(now, leads)
return {"ok", leads and 1 or 0, now, due, delays, oldest, lock[3] or "", lock[4] or "", tonumber(lock[5]) or 0, tick,
  pause_end(lock[6], now, leads), lock[7] or "", tonumber(lock[8]) or 0}
