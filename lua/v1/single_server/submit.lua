-- submit: intend, enqueue and insert_tokens for requests with the same terms in one script, where one server has all
-- keys: no other client sees a state between them. In a queue that has a bound or is spread over shards it announces
-- the requests only, and their producer goes on.
-- Says: (max_waiting shards submitted...)
--   max_waiting, shards = what intend says; submitted = for each request its `born`, if it is there with all its bodies,
--   and its tokens are in their lane. Else three values: score and former, as intend says, and what enqueue says without
--   the tokens that are in their lane already; "" = not enqueued: it was only announced, or refused among several
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local conf = KEYS[2]  -- {queue}:conf  hash  max_waiting, shards, layout
local lane_key = KEYS[3]  -- {queue}:<priority>  list  tokens
local turns = KEYS[4]  -- {queue}:turns  zset  <lane>|<tenant>|<seq>|<token> -> 0
local tenants = KEYS[5]  -- {queue}:tenants  zset  tenant -> its virtual time, see lib/turns.lua
local requests = 6  -- KEYS[6...]  req:{id}  hash  one for each request, 1..400; their other keys are derived
-- @include lib/keys_of_many.lua
local now = ARGV[1]  -- ms, "" = server time
local queue = ARGV[2]  -- queue name
local policy = ARGV[3]  -- ten numbers, see lib/create.lua
local extras = ARGV[4]  -- lines, see lib/create.lua; "" = none
local grace = tonumber(ARGV[5])  -- ms until the auditor looks
local open_ms = tonumber(ARGV[6])  -- how long a request may stay open without a chunk; 0 = it is sealed
local contents = 7  -- ARGV[7...]  for each request: digest (hex), number of bodies, bodies; see read_requests
-- @include lib/core.lua
-- @include lib/create.lua
-- @include lib/limit_keys.lua
local MOST_REQUESTS = 400
local MOST_TOKENS = 1000

local count = #KEYS - requests + 1
if not grace or not open_ms or count < 1 or count > MOST_REQUESTS then
  return redis.error_reply("BADARGUMENT submit wants two durations in ms, and 1 to 400 requests")
end
local all, refused = read_requests(ARGV, contents, count, {queue = queue, policy = policy, open_ms = open_ms, extras = extras})
if refused then
  return refused
end
local ids = {}
for i = 1, count do
  ids[i] = string.sub(KEYS[requests + i - 1], 6, -2)  -- req:{id}
end
local home
if all[1].extras.limits or all[1].extras.order then
  home = "{" .. queue .. "}"
  for i, new in ipairs(all) do
    refused = refused or redis.call("HGET", KEYS[requests + i - 1], "digest") ~= new.digest and limits_error(new, redis.call("HGET", conf, "shards"))
  end
  if refused then
    return refused
  end
end
now = now_ms(now)
local announced
announced, refused = intend(now, grace, 0, ids, 1, count)
if refused then
  return refused
end
local is_announced_only = announced[1] ~= 0 or announced[2] ~= ""
local submitted, tokens = {announced[1], announced[2]}, {}
for i, new in ipairs(all) do
  local score, reply = announced[2 * i + 1], ""
  if not is_announced_only then
    select_request(KEYS[requests + i - 1])
    new.ids = new.own and "ids:{" .. ids[i] .. "}"
    local is_done = true
    if count == 1 then
      reply = enqueue(new, now, score, "")
    else
      is_done, reply = pcall(enqueue, new, now, score, "")
    end
    if not is_done then
      reply = ""
    elseif reply[1] == "ok" then
      reply[2] = take_due(reply[2], ids[i], tokens, home)
    end
  end
  if reply[1] == "ok" and #reply[2] == 0 and not reply[4] then
    submitted[i + 2] = reply[3]
  else
    submitted[i + 2] = {score, announced[2 * i + 2], reply}
  end
end
for i = 1, #tokens, MOST_TOKENS do
  redis.call("LPUSH", lane_key, unpack(tokens, i, math.min(i + MOST_TOKENS - 1, #tokens)))
end
return submitted
