-- intend: the producer's first step. The id stands in `active` before the request exists, so that a
-- producer that dies between the slots leaves a trace. Says: the score, by this slot's clock,
-- and the one before it (0 = none)
-- @flags grows
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local now = ARGV[1]  -- ms, "" = server time
local id = ARGV[2]  -- request
local grace = tonumber(ARGV[3])  -- ms until the auditor looks
local above = tonumber(ARGV[4])  -- a score the auditor has given up, or 0
-- @include lib/now_ms.lua

if not grace or not above then
  return redis.error_reply("BADARGUMENT intend wants numbers for grace and above")
end
local before = tonumber(redis.call("ZSCORE", active, id) or 0)
local score = math.max(before + 1, above + 1, now_ms(now) + grace)  -- each intent is newer than any the auditor has seen
redis.call("ZADD", active, score, id)
return {score, before}
