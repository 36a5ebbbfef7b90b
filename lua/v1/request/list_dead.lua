-- list_dead: returns the next dead sub-requests after the one in `after`, without their bodies, which may be big.
-- Says: = rows
--   rows = {id, head, reason, error, worker, bytes of the body, its beginning}, empty = no more
-- @flags no-writes
-- @include lib/request_keys.lua
local after = ARGV[1]  -- id of a dead entry, "" = from the first
local count = tonumber(ARGV[2])  -- the most to list, 1..1000
-- @include lib/state.lua
-- @include lib/dead_letters.lua
local START = 840  -- bytes of a body that hold the name of its task (common/task_names.py)

if not count or count < 1 or count > 1000 then
  return redis.error_reply("BADCOUNT a page of 1 to 1000 dead entries is expected")
end
if after ~= "" and not string.match(after, "^%d+%-%d+$") then
  return redis.error_reply("BADARGUMENT list_dead wants the id of a dead entry")
end
local state = load_state()
local biggest = state and state.max_body or 0
count = math.max(1, math.min(count, math.floor(DEAD_BYTES / math.max(1, biggest))))
local listed, texts = {}, {}
for i, entry in ipairs(redis.call("XRANGE", dead, after == "" and "-" or "(" .. after, "+", "COUNT", count)) do
  local fields = fields_of(entry)
  local name = fields.error
  texts[name] = texts[name] or redis.call("HGET", errors, name) or ""
  listed[i] = {entry[1], fields.head, fields.reason, texts[name], fields.worker, #fields.body,
    string.sub(fields.body, 1, START)}
end
return listed
