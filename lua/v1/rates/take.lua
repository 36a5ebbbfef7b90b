-- take: takes sub-requests from the bucket of a rate.
-- Says: (taken wait)
--   taken = how many may start now, 0..want; wait = ms until the caller may ask again, if that is 0
-- @flags allow-oom
local bucket = KEYS[1]  -- rate:{<key>}  string  <tat>:<line>:<seen>:<held> in µs
local now = ARGV[1]  -- ms, "" = server time
local interval = ARGV[2]  -- µs between two sub-requests
local burst = ARGV[3]  -- how many may come together
local weight = ARGV[4]  -- how many each sub-request counts for
local want = tonumber(ARGV[5])  -- the most sub-requests, 1..1000
local waited = ARGV[6]  -- "1" = the caller has waited as long as an earlier reply named; "2" = it takes no place in the line
-- @include lib/core.lua
-- @include lib/rates.lua

local rate, refused = read_rate(interval, burst, weight)
if refused then
  return refused
elseif not want or want < 1 or want > 1000 then
  return redis.error_reply("BADCOUNT a slice of 1 to 1000 is expected")
end
return {take(bucket, now_ms(now), rate, want, waited == "1", waited == "2")}
