-- set_max_waiting: sets or removes the bound on what waits in this queue. Without a bound nothing is counted.
-- Says: = done
-- @flags allow-oom
local conf = KEYS[1]  -- {queue}:conf  hash  max_waiting, waiting, recounted
local loads = KEYS[2]  -- {queue}:load  hash  request -> what it adds to what waits
local most = tonumber(ARGV[1])  -- sub-requests; 0 = no bound

if not most or most < 0 or most % 1 ~= 0 then
  return redis.error_reply("BADARGUMENT a whole number of sub-requests is expected, 0 for no bound")
end
if most == 0 then
  redis.call("HDEL", conf, "max_waiting", "waiting", "recounted")
  redis.call("UNLINK", loads)
else
  redis.call("HSET", conf, "max_waiting", string.format("%.0f", most))
end
return 1
