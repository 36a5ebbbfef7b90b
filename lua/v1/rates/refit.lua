-- refit: bounds what the bucket of a rate owes to its burst, after the rate was changed. Otherwise the debt of a slower
-- rate would close the bucket for as long. The line begins anew, and a hold of the bucket stands.
-- Says: = bounded
-- @flags allow-oom
local bucket = KEYS[1]  -- rate:{<key>}  string  <tat>:<line>:<seen>:<held> in µs
local now = ARGV[1]  -- ms, "" = server time
local interval = ARGV[2]  -- µs between two sub-requests
local burst = ARGV[3]  -- how many may come together
local weight = ARGV[4]  -- how many each sub-request counts for
-- @include lib/core.lua
-- @include lib/rates.lua

local rate, refused = read_rate(interval, burst, weight)
if refused then
  return refused
end
refit(bucket, now_ms(now), rate)
return 1
