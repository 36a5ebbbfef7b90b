-- admit: asks for room for one chunk of a request. Idempotent by the chunk's number. If nothing waits, there is
-- always room, also for a chunk above the bound. If the last recount is older than `pause`, a refusal asks only
-- this caller for the next one, so that a hundred producers do not all recount.
-- Says: ok | full waiting max_waiting recount
--   recount = 1: the caller should recount and ask again
-- @flags grows
local conf = KEYS[1]  -- {queue}:conf  hash  max_waiting, waiting, recounted
local loads = KEYS[2]  -- {queue}:load  hash  request -> what it adds to what waits
local active = KEYS[3]  -- {queue}:active  zset  request -> when to look at it next, ms
local now = ARGV[1]  -- ms, "" = server time
local id = ARGV[2]  -- request
local chunk = tonumber(ARGV[3])  -- number of the chunk, from 1
local count = tonumber(ARGV[4])  -- its sub-requests
local pause = tonumber(ARGV[5])  -- ms between two recounts
-- @include lib/core.lua
-- @include lib/queue.lua

if not chunk or not count or not pause then
  return redis.error_reply("BADARGUMENT admit wants numbers for chunk, count and pause")
end
local bound = redis.call("HMGET", conf, "max_waiting", "waiting", "recounted")
local most, waiting = tonumber(bound[1] or 0), tonumber(bound[2] or 0)
local before = read_load(id)
-- If it is not in `active`, it has ended or its intent was dropped, and no call would take it off again.
if most == 0 or (before and chunk <= before.chunk) or not redis.call("ZSCORE", active, id) then
  return {"ok"}
end
if waiting > 0 and waiting + count > most then
  now = now_ms(now)
  local recount = math.abs(now - tonumber(bound[3] or 0)) >= pause  -- the clock may have gone back since
  if recount then
    redis.call("HSET", conf, "recounted", now)
  end
  return {"full", waiting, most, recount and 1 or 0}
end
local load = before or {admitted = 0, settled = 0}
change_load(id, before, {admitted = load.admitted + count, chunk = chunk, settled = load.settled})
return {"ok"}
