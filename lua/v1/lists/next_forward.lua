-- next_forward: settles a batch that is in the target list, and returns the next one to the forwarder that holds the lease.
-- The messages in `flight` have consecutive numbers: the oldest has `sequence` + 1. So each number is one message for ever,
-- and the target can leave out a number that it has.
-- Says: ok epoch sequence chain waiting messages | held left | wrongtype
--   wrongtype: the source holds no list; left = ms until the lease of another forwarder ends; waiting = messages behind those that are returned
-- @flags allow-oom
local source = KEYS[1]  -- a list of a person; its oldest message is at the tail
local flight = KEYS[2]  -- {<list>}:forwarding  list  messages that left the source and are not settled
local state = KEYS[3]  -- {<list>}:forward  hash  epoch, sequence, chain, owner, until, earlier, restarts, restarted, reason
local now = ARGV[1]  -- ms, "" = server time
local owner = ARGV[2]  -- of the forwarder
local lease = tonumber(ARGV[3])  -- ms, 0 = end the lease
local most = tonumber(ARGV[4])  -- messages, 1..1000
local fresh = ARGV[5]  -- the epoch of a list that has none
local epoch = ARGV[6]  -- of the batch to settle, "" = there is none
local before = ARGV[7]  -- its sequence
local count = tonumber(ARGV[8])  -- its messages
local chain = ARGV[9]  -- the digest of all messages up to its last one
-- @include lib/core.lua
-- @include lib/lists.lua
-- @include lib/ahead.lua

if owner == "" or fresh == "" or not lease or lease < 0 or not most or most < 1 or most > 1000 or not count or count < 0 then
  return redis.error_reply("BADARGUMENT next_forward wants an owner, an epoch, ms, and 1 to 1000 messages")
end
local kind = redis.call("TYPE", source).ok
if kind ~= "list" and kind ~= "none" then
  return {"wrongtype"}
end
if redis.call("HGET", state, "epoch") == epoch and redis.call("HGET", state, "sequence") == before then
  redis.call("LTRIM", flight, 0, -count - 1)
  redis.call("HSET", state, "sequence", before + count, "chain", chain)
end
local clock = now_ms(now)
local ends = tonumber(redis.call("HGET", state, "until") or 0)
if redis.call("HGET", state, "owner") ~= owner and ends > clock and (lease == 0 or not is_void(ends, clock, lease)) then
  return {"held", ends - clock}
end
if redis.call("HSETNX", state, "epoch", fresh) == 1 then
  redis.call("HSET", state, "sequence", 0, "chain", "")
end
local messages = {}
if lease == 0 then
  redis.call("HDEL", state, "owner", "until")
else
  redis.call("HSET", state, "owner", owner, "until", clock + lease)
  for _ = redis.call("LLEN", flight) + 1, most do
    if not redis.call("LMOVE", source, flight, "RIGHT", "LEFT") then
      break
    end
  end
  messages = oldest_first(redis.call("LRANGE", flight, -most, -1))
end
local waiting = redis.call("LLEN", source) + redis.call("LLEN", flight) - #messages
local known = redis.call("HMGET", state, "epoch", "sequence", "chain")
return {"ok", known[1], tonumber(known[2]), known[3], waiting, messages}
