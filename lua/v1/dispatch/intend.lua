-- intend: the producer's first step. It adds the ids to `active` before the requests exist, so that a producer that
-- dies between its calls to the two slots leaves a trace. It refuses a limit that a key has not, before anything is written.
-- Says: (max_waiting shards scores...)
--   max_waiting = bound on what waits in the queue, 0 = none: the producer need not ask for room
--   scores = two values for each id: the new score, a whole number by this slot's clock; and the former score as
--   text, which may have a fraction ("0" = none)
-- @flags grows
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local conf = KEYS[2]  -- {queue}:conf  hash  max_waiting, shards, layout
local now = ARGV[1]  -- ms, "" = server time
local grace = tonumber(ARGV[2])  -- ms until the auditor looks
local above = tonumber(ARGV[3])  -- the score of an intent that the auditor gave up: the new one is higher; 0 = none
local named = ARGV[4]  -- the keys of these requests with their limits, as the extra `limits` in lib/create.lua; "" = none
local ids = 5  -- ARGV[5...]  requests, each once
-- @include lib/core.lua
-- @include lib/create.lua
local MOST = 400

if not grace or not above then
  return redis.error_reply("BADARGUMENT intend wants numbers for grace and above")
end
if #ARGV < ids or #ARGV - ids + 1 > MOST then
  return redis.error_reply("BADARGUMENT intend wants 1 to " .. MOST .. " requests")
end
if named ~= "" then
  local refused = limits_error({queue = string.match(conf, "^{([^}]*)}"), extras = {limits = named}}, redis.call("HGET", conf, "shards"))
  if refused then
    return refused
  end
  redis.call("HSET", conf, "has_keys", 1)  -- from now on the queue gets no shards
end
local announced, refused = intend(now_ms(now), grace, above, ARGV, ids, #ARGV)
return refused or announced
