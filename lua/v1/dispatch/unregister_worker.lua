-- unregister_worker: deletes the record of a worker that ends. The record of a later process of the same name stays.
-- Says: = removed
-- @flags allow-oom
local workers = KEYS[1]  -- {queue}:workers  zset  worker -> last beat, ms
local worker = KEYS[2]  -- {queue}:worker:<host:port>  hash  host, pid, started, renewed
local conf = KEYS[3]  -- {queue}:conf  hash  lock, lock_until
local taken = KEYS[4]  -- {queue}:taken:<host:port>  hash  unit -> the tokens it took last
local id = ARGV[1]  -- host:port
local started = ARGV[2]  -- ms

local mine = redis.call("HGET", worker, "started")
if mine and mine ~= started then
  return 0
end
if redis.call("HGET", conf, "lock") == id then
  redis.call("HDEL", conf, "lock", "lock_until")
end
redis.call("DEL", worker, taken)
return redis.call("ZREM", workers, id)
