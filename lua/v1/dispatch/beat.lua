-- beat: renews a worker, hands the maintenance lock on and says what is due next: nothing else polls.
-- Says: ok leads now active_due delayed_due oldest_beat shards left (dues: 0 = nothing; the last two as
--   set_shards knows them) | drain (somebody deleted its record) |
--   unknown (the record is gone or has expired: register again) | replaced (another process has the name)
-- @flags allow-oom
local workers = KEYS[1]  -- {queue}:workers  zset  worker -> last beat, ms
local worker = KEYS[2]  -- {queue}:worker:<host:port>  hash  host, pid, started, renewed
local active = KEYS[3]  -- {queue}:active  zset  request -> when to look at it next, ms
local delayed = KEYS[4]  -- {queue}:delayed  zset  <priority>|<token> -> due, ms
local conf = KEYS[5]  -- {queue}:conf  hash  lock, lock_until, shards, left
local now = ARGV[1]  -- ms, "" = server time
local id = ARGV[2]  -- host:port
local started = ARGV[3]  -- ms
local ttl = tonumber(ARGV[4])  -- ms the record outlives its last beat
local lock_ms = tonumber(ARGV[5])  -- ms the maintenance lock outlives its holder
local holds = ARGV[6]  -- words for people: what the worker holds
-- @include lib/now_ms.lua

if not ttl or not lock_ms then
  return redis.error_reply("BADARGUMENT beat wants numbers for ttl and lock_ms")
end
local mine = redis.call("HGET", worker, "started")
now = now_ms(now)
if not mine then
  -- Listed with a fresh beat: somebody deleted the record. With an old one, it only expired while
  -- Redis or the worker was away.
  local beaten = tonumber(redis.call("ZSCORE", workers, id))
  return {beaten and now - beaten < ttl and "drain" or "unknown"}
end
if mine ~= started then
  return {"replaced"}
end
redis.call("HSET", worker, "renewed", now, "holds", holds)
redis.call("PEXPIRE", worker, ttl)
redis.call("ZADD", workers, now, id)
local lock = redis.call("HMGET", conf, "lock", "lock_until", "shards", "left")
local leads = lock[1] == id or tonumber(lock[2] or 0) < now
if leads then
  redis.call("HSET", conf, "lock", id, "lock_until", now + lock_ms)
end
local first = redis.call("ZRANGE", active, 0, 0, "WITHSCORES")
local next = redis.call("ZRANGE", delayed, 0, 0, "WITHSCORES")
local oldest = redis.call("ZRANGE", workers, 0, 0, "WITHSCORES")
return {"ok", leads and 1 or 0, now, tonumber(first[2]) or 0, tonumber(next[2]) or 0, tonumber(oldest[2]),
  lock[3] or "", lock[4] or ""}
