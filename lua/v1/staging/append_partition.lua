-- append_partition: adds the next rows of one partition of a transaction to an open request. Idempotent by the rows'
-- place in the partition: rows below the partition's mark were added before, perhaps by another caller.
-- Says: ok tokens added waiting | closed | ended summary | gone
-- @flags grows
-- @include lib/request_keys.lua
local record = KEYS[11]  -- txn:{id}:<txn>  hash  p<partition> -> how many of its rows were added
local now = ARGV[1]  -- ms, "" = server time
local partition = ARGV[2]  -- its number
local first = tonumber(ARGV[3])  -- how many rows of the partition come before these
local open_ms = tonumber(ARGV[4])  -- ms until the request may be taken for abandoned
local ttl = tonumber(ARGV[5])  -- ms that the record stays
local keep = ARGV[6]  -- "1": results show the bodies, too
local packed = ARGV[7]  -- the sub-requests: count, lengths, bodies
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/append.lua

if not first or first < 0 or not open_ms or not ttl or ttl < 1 then
  return redis.error_reply("BADARGUMENT append_partition wants numbers for first, open_ms and ttl")
end
local bodies = unpacked(packed)
if not bodies then
  return bad_packing()
end
local state, over = load_unfinished()
local is_new = state and state.total == 0  -- all marks are of a former life: its tombstone expires before this record
local field = "p" .. partition
local mark = is_new and 0 or tonumber(redis.call("HGET", record, field) or 0)
if first > mark then
  return redis.error_reply("BADCHUNK row " .. first .. " of partition " .. partition .. " came after " .. mark .. " rows")
end
for _, name in ipairs(is_new and redis.call("HKEYS", record) or {}) do
  if string.match(name, "^p%d+$") then
    redis.call("HDEL", record, name)
  end
end
local wanted = {}
for i = mark - first + 1, #bodies do
  wanted[#wanted + 1] = bodies[i]
end
local early = answer_early(state, over, wanted)
if early then
  return early
end
now = now_ms(now)
if #wanted > 0 then
  redis.call("HSET", record, field, mark)
  redis.call("PEXPIRE", record, ttl)
  keep_rows(state, nil, wanted, keep)
  grow(state, now, open_ms, wanted)
  redis.call("HSET", record, field, mark + #wanted)
end
return answer_grown(state, now, wanted)
