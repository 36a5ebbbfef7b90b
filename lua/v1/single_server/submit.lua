-- submit: intend, enqueue and insert_tokens in one script, where all keys are on one server: no other client
-- sees a state between them. In a queue that is bounded or spread over shards it announces the request only,
-- and its producer goes on.
-- Says: (max_waiting shards score former enqueued?)
--   max_waiting, shards, score, former = what intend says; enqueued = what enqueue says, without the tokens that
--   are in their lane already
-- @include lib/core/request_keys.lua
local active = KEYS[10]  -- {queue}:active  zset  request -> when to look at it next, ms
local conf = KEYS[11]  -- {queue}:conf  hash  max_waiting, shards, layout
local lane_key = KEYS[12]  -- {queue}:<priority>  list  tokens
local now = ARGV[1]  -- ms, "" = server time
local queue = ARGV[2]  -- queue name
local policy = ARGV[3]  -- ten numbers, see lib/create/policy.lua
local digest = ARGV[4]  -- hex; over queue, policy, parent and the first chunk
local grace = tonumber(ARGV[5])  -- ms until the auditor looks
local open_ms = tonumber(ARGV[6])  -- how long the request may stay open without a chunk; 0 = it is sealed
local parent = ARGV[7]  -- the request whose dead sub-requests these were, or ""
local id = ARGV[8]  -- the request
local bodies = 9  -- ARGV[9...]  the first chunk
-- @include lib/core/now_ms.lua
-- @include lib/create/enqueue.lua
-- @include lib/create/intend.lua
local MOST = 1000

if not grace then
  return redis.error_reply("BADARGUMENT submit wants a number for grace")
end
local new = {queue = queue, policy = policy, digest = digest, open_ms = open_ms, parent = parent, shards = "", bodies = bodies}
local refused = enqueue_error(new)
if refused then
  return refused
end
now = now_ms(now)
local announced
announced, refused = intend(now, grace, 0, 8, 8)  -- ARGV[8] is the id
if refused or announced[1] ~= 0 or announced[2] ~= "" then
  return refused or announced
end
local reply = enqueue(new, now, announced[3], 0)
announced[5] = reply
if reply[1] == "ok" then
  local tokens = {}
  for i = 2, #reply[2], 3 do  -- all of them go to its lane, now
    tokens[#tokens + 1] = id .. "#" .. reply[2][i]
  end
  for i = 1, #tokens, MOST do
    redis.call("LPUSH", lane_key, unpack(tokens, i, math.min(i + MOST - 1, #tokens)))
  end
  reply[2] = {}
end
return announced
