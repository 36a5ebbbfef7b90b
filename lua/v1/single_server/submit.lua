-- submit: intend, enqueue and insert_tokens at once, where all keys are on one server: nobody sees what
-- is between them. In a queue that is bounded or spread over shards it announces the request only, and
-- its producer goes on. Says: what intend says, then what enqueue says, without the tokens that are in
-- their lane already.
-- @include lib/core/request_keys.lua
local active = KEYS[10]  -- {queue}:active  zset  request -> when to look at it next, ms
local conf = KEYS[11]  -- {queue}:conf  hash  max_waiting, shards, layout
local lane_key = KEYS[12]  -- {queue}:<priority>  list  tokens
local now = ARGV[1]  -- ms, "" = server time
local queue = ARGV[2]  -- queue name
local priority = tonumber(ARGV[3])  -- lane 0..99
local limit = tonumber(ARGV[4])  -- permits 1..10000
local digest = ARGV[5]  -- hex; over queue, priority, limit, options and the first chunk
local grace = tonumber(ARGV[6])  -- ms until the auditor looks
local open_ms = tonumber(ARGV[7])  -- how long the request may stay open without a chunk; 0 = sealed at once
local attempts = tonumber(ARGV[8])  -- deliveries before a sub-request is dead
local backoff_min = tonumber(ARGV[9])  -- ms
local backoff_max = tonumber(ARGV[10])  -- ms
local lease_ms = tonumber(ARGV[11])  -- ms
local retain_ms = tonumber(ARGV[12])  -- ms; how long results stay after the end
local deadline_ms = tonumber(ARGV[13])  -- ms from now, after which nothing of it starts; 0 = none
local time_limit_ms = tonumber(ARGV[14])  -- ms one call of the handler may take; 0 = any
local durable = tonumber(ARGV[15])  -- how many replicas must have what is acknowledged
local parent = ARGV[16]  -- the request whose dead sub-requests these were, or ""
local id = ARGV[17]  -- the request
local bodies = 18  -- ARGV[18...]  the first chunk
local shards = ""  -- its tokens go to the queue's own lanes
-- @include lib/core/now_ms.lua
-- @include lib/create/enqueue.lua
-- @include lib/create/intend.lua
local MOST = 1000

local refused = enqueue_error()
if refused then
  return refused
end
now = now_ms(now)
local told
told, refused = intend(now, grace, 0, 17, 17)
if refused or told[1] ~= 0 or told[2] ~= "" then
  return refused or told
end
local reply = enqueue(now, told[3], 0)
told[5] = reply
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
return told
