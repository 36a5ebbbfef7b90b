-- refund: returns to the bucket of a rate what was taken and not used. A bucket is never fuller than its burst. A hold
-- stands. A repeat would return more than was taken; if the call is lost instead, that many sub-requests start later.
-- Says: = returned
-- @flags allow-oom
-- @once
local bucket = KEYS[1]  -- rate:{<key>}  string  <tat>:<line>:<seen>:<held> in µs
local now = ARGV[1]  -- ms, "" = server time
local interval = ARGV[2]  -- µs between two sub-requests
local burst = ARGV[3]  -- how many may come together
local weight = ARGV[4]  -- how many each sub-request counts for
local unused = tonumber(ARGV[5])  -- sub-requests, 1..1000
-- @include lib/core.lua
-- @include lib/rates.lua

local rate, refused = read_rate(interval, burst, weight)
if refused then
  return refused
elseif not unused or unused < 1 or unused > 1000 then
  return redis.error_reply("BADCOUNT 1 to 1000 sub-requests are expected")
end
refund(bucket, now_ms(now), rate, unused)
return unused
