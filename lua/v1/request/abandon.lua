-- abandon: the auditor found an intent without a request. The marker makes the producer's late
-- enqueue start over, instead of creating a request that nobody looks after.
-- Says: ok | exists
-- @flags allow-oom
-- @include lib/request_keys.lua
local seen = tonumber(ARGV[1])  -- the intent's score
local ttl = tonumber(ARGV[2])  -- ms the marker stays

if not seen or not ttl then
  return redis.error_reply("BADARGUMENT abandon wants numbers for seen and ttl")
end
local state = redis.call("HGET", request, "state")
if state and state ~= "abandoned" then
  return {"exists"}
end
seen = math.floor(seen)  -- no intent lies between
local before = tonumber(redis.call("HGET", request, "seen") or -1)
redis.call("HSET", request, "state", "abandoned", "seen", math.max(before, seen))
redis.call("PEXPIRE", request, ttl)
return {"ok"}
