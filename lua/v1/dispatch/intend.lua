-- intend: the producer's first step. The id stands in `active` before the request exists, so that a
-- producer that dies between the slots leaves a trace. Says: the score, by this slot's clock and
-- always whole, the one before it as text, because that may have a fraction ("0" = none), and the bound
-- on what waits in the queue (0 = none: the producer need not ask for room)
-- @flags grows
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local conf = KEYS[2]  -- {queue}:conf  hash  max_waiting
local now = ARGV[1]  -- ms, "" = server time
local id = ARGV[2]  -- request
local grace = tonumber(ARGV[3])  -- ms until the auditor looks
local above = tonumber(ARGV[4])  -- a score the auditor has given up, or 0
-- @include lib/now_ms.lua

if not grace or not above then
  return redis.error_reply("BADARGUMENT intend wants numbers for grace and above")
end
local before = redis.call("ZSCORE", active, id) or "0"
-- Each intent is newer than any the auditor has seen.
local score = math.max(math.floor(tonumber(before)) + 1, above + 1, now_ms(now) + grace)
redis.call("ZADD", active, score, id)
return {score, before, tonumber(redis.call("HGET", conf, "max_waiting") or 0)}
