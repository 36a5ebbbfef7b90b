-- stage: stores one packed chunk of sub-requests in a staging area in the slot of its request. No worker gets it before
-- append_staged. Idempotent by the chunk's number: the reply to a repeat is `dup`. An area has one writer.
-- Says: ok | dup
-- @flags grows
local staged = KEYS[1]  -- stage:{id}:<txn>:<area>  hash  chunk -> packed sub-requests; rows -> how many in all
local chunk = tonumber(ARGV[1])  -- number of this chunk, from 1
local ttl = tonumber(ARGV[2])  -- ms that the area stays unless it is pinned
local packed = ARGV[3]  -- count, lengths, bodies
local MAX_ENTRIES = 1000

if not chunk or chunk < 1 or not ttl or ttl < 1 then
  return redis.error_reply("BADARGUMENT stage wants positive numbers for chunk and ttl")
end
local count = #packed >= 4 and struct.unpack("<I4", packed) or -1
if count < 1 or count > MAX_ENTRIES or #packed < 4 + 4 * count then
  return redis.error_reply("BADCHUNK 1 to " .. MAX_ENTRIES .. " packed sub-requests are expected: count, lengths, bodies")
end
local before = redis.call("HLEN", staged)  -- with the field `rows`
if chunk > math.max(before, 1) then
  return redis.error_reply("BADCHUNK chunk " .. chunk .. " came after chunk " .. math.max(before - 1, 0))
end
local word = "dup"
if redis.call("HSETNX", staged, chunk, packed) == 1 then
  redis.call("HINCRBY", staged, "rows", count)
  word = "ok"
end
redis.call("PEXPIRE", staged, ttl)
return {word}
