-- expire_workers: forgets workers that have not beaten for a whole TTL.
-- Says: = workers
-- @flags allow-oom
local workers = KEYS[1]  -- {queue}:workers  zset  worker -> last beat, ms
local now = ARGV[1]  -- ms, "" = server time
local ttl = tonumber(ARGV[2])  -- ms
-- @include lib/core.lua

if not ttl then
  return redis.error_reply("BADARGUMENT expire_workers wants a number for ttl")
end
local old = redis.call("ZRANGEBYSCORE", workers, "-inf", now_ms(now) - ttl, "LIMIT", 0, 100)
if #old > 0 then
  redis.call("ZREM", workers, unpack(old))
end
return old
