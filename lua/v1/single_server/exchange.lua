-- exchange: completes leases, dispatches what follows, pops the most urgent tokens and acquires them, all in one call,
-- where one server has all keys. It leaves what complete, insert_tokens, retire, a pop and acquire leave one by one.
-- Idempotent by op: the notes of its units name the tokens that a call has popped, and a repeat pops no others.
-- Says: (settled left unlogged tokens acquired)
--   settled = for each lease what complete says, without tokens and summary; "" = an error refused it alone;
--   left = id, lane, permit and delay of each token to dispatch that is not due now, or not of a lane in KEYS;
--   unlogged = id and summary of each ending that the log refused; tokens = those popped; acquired = for each of them
--   what acquire says, without tokens and summary; "" = an error refused it alone. One that must be acquired "alone"
--   is the next token of its lane again
-- @flags allow-oom
local active = KEYS[1]  -- {queue}:active  zset  request -> when to look at it next, ms
local logged = KEYS[2]  -- {queue}:logged  zset  <id>|<born> -> when this marker may go, ms
local completed = KEYS[3]  -- {queue}:completed  stream  one entry per finished request
local conf = KEYS[4]  -- {queue}:conf  hash  waiting
local loads = KEYS[5]  -- {queue}:load  hash  request -> what it adds to what waits
local taken = KEYS[6]  -- {queue}:taken:<worker>  hash  unit -> the tokens it took last
local turns = KEYS[7]  -- {queue}:turns  zset  <lane>|<tenant>|<seq>|<token> -> 0
local tenants = KEYS[8]  -- {queue}:tenants  zset  tenant -> its virtual time, see lib/turns.lua
local lanes = 9  -- KEYS[9...]  {queue}:<priority>  list  tokens; from the most urgent lane on
-- @include lib/keys_of_many.lua
local now = ARGV[1]  -- ms, "" = server time
local least = tonumber(ARGV[2])  -- ms a marker stays longer than the tombstone, at least
local longest = tonumber(ARGV[3])  -- ... and at most
local most = tonumber(ARGV[4])  -- about how many entries the log keeps
local place = ARGV[5]  -- the unit; or several, with spaces between them: each takes one token at most
local op = ARGV[6]  -- hex; 88 random bits of the process, and a count
local ttl = ARGV[7]  -- ms of the note
local worker = ARGV[8]  -- host:port
local started = ARGV[9]  -- ms; differs after a restart of the worker
local want = ARGV[10]  -- the most tokens to pop, 0..1000
local shared = ARGV[11]  -- "1" = their holder has other leases, too
local measured = ARGV[12]  -- how many requests with a size follow
local sizes = 13  -- ARGV[13...]  request and the most sub-requests of its slice, each; 1 for any other request
-- Then for each lease: request, k, fence, op, done, others, and as in complete: ids, pairs, and fives for the others
-- @include lib/core.lua
-- @include lib/exchange.lua

want, measured = whole(want, 1000), whole(measured, 1000)
if not least or not longest or not most or not want or not measured then
  return redis.error_reply("BADARGUMENT exchange wants five numbers, and pops at most 1000 tokens")
end
local places = read_places(place, want)
if not places then
  return redis.error_reply("BADARGUMENT exchange wants a place, or up to 400 of which each takes one token at most")
end
local size_of, held, refused = read_exchange(ARGV, sizes, measured)
if refused then
  return refused
end
now = now_ms(now)
local follow_ups = new_follow_ups({least = least, longest = longest, most = most})
local settled = {}
for i, lease in ipairs(held) do
  local is_done, reply = pcall(settle_one, now, lease, follow_ups)
  settled[i] = is_done and reply or ""
end
dispatch_now(follow_ups, now)
local tokens, from_lane = pop_noted(places, want)
local share = 1
if #places == 1 and #tokens > 1 then
  local sized = measured == 0 and 1 or math.max(1, count_measured(tokens, size_of))
  shared, share = "1", sized
end
local acquired, alone = {}, {}
for i, token in ipairs(tokens) do
  local claim = {op = op, worker = worker, started = started, shared = shared, share = share}
  local is_done, reply = pcall(acquire_one, now, token, claim, size_of, follow_ups)
  acquired[i] = is_done and reply or ""
  if not is_done and string.find(token, "%", 1, true) then
    pcall(drop_token, queue_home(), token)
  end
  if acquired[i][1] == "alone" and from_lane[i] then
    alone[#alone + 1] = i
  end
end
for i = #alone, 1, -1 do  -- so that they are popped in the same order again
  redis.call("RPUSH", KEYS[lanes + from_lane[alone[i]]], tokens[alone[i]])
end
dispatch_now(follow_ups, now)
return {settled, follow_ups.left, follow_ups.unlogged, tokens, acquired}
