-- hold_rate: closes the bucket of a rate for a time: the other side has asked to be called later. If it is closed for longer
-- already, that stands.
-- Says: = held
-- @flags allow-oom
local bucket = KEYS[1]  -- rate:{<key>}  string  <tat>:<line>:<seen>:<held> in µs
local now = ARGV[1]  -- ms, "" = server time
local interval = ARGV[2]  -- µs between two sub-requests
local burst = ARGV[3]  -- how many may come together
local weight = ARGV[4]  -- how many each sub-request counts for
local ms = tonumber(ARGV[5])  -- how long, 1 ms to a day
-- @include lib/core.lua
-- @include lib/rates.lua

local rate, refused = read_rate(interval, burst, weight)
if refused then
  return refused
elseif not ms or ms < 1 or ms > 86400000 then
  return redis.error_reply("BADARGUMENT 1 ms to a day is expected")
end
hold(bucket, now_ms(now), rate, ms)
return ms
