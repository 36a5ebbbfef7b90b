-- rate_queue: gives a queue a rate, or removes it. Workers read this with their beats.
-- Says: = done
-- @flags allow-oom
local conf = KEYS[1]  -- {queue}:conf  hash  rate
local interval = tonumber(ARGV[1])  -- µs between two sub-requests; 0 = no rate
local burst = tonumber(ARGV[2])  -- how many may start together after a pause; 0 = no rate

local is_whole = interval and burst and interval % 1 == 0 and burst % 1 == 0
if not is_whole or interval < 0 or burst < 0 or interval > 86400000000 or burst > 1000000 or (interval == 0) ~= (burst == 0) then
  return redis.error_reply("BADARGUMENT a whole interval in µs and a burst are expected, both 0 for no rate")
end
if interval == 0 then
  redis.call("HDEL", conf, "rate")
else
  redis.call("HSET", conf, "rate", string.format("%.0f %.0f", interval, burst))
end
return 1
