-- hand_over: adds what another request has finished to an open request, and moves the cursor over it in the same call.
-- So what is handed over twice, by a repeat or by two leaders, finds that the cursor has moved.
-- Without bodies, and if the cursor stays, it only keeps the request from being given up.
-- Says: ok tokens chunks | moved cursor tokens chunks | closed | cancelling summary | ended summary | gone
-- @flags grows
-- @include lib/core/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local since = ARGV[2]  -- the cursor: the last entry of the other request that is here; 0-0 = there is none
local upto = ARGV[3]  -- the last entry that these bodies are from
local open_ms = tonumber(ARGV[4])  -- ms until the request may be taken for abandoned
local bodies = 5  -- ARGV[5...]  the sub-requests
-- @include lib/core/now_ms.lua
-- @include lib/core/state.lua
-- @include lib/core/digest_chain.lua
-- @include lib/permits/permits.lua
-- @include lib/permits/mint.lua
-- @include lib/core/finish.lua
-- @include lib/create/add_chunk.lua
local CURSOR = "^%d+%-%d+$"

if not open_ms or not string.find(since, CURSOR) or not string.find(upto, CURSOR) then
  return redis.error_reply("BADARGUMENT hand_over wants two entries and a number for open_ms")
end
local refused = entry_error(bodies, #ARGV)
if refused then
  return refused
end
now = now_ms(now)
local state, over = load_unfinished()
if over then
  return over
elseif state.open == 0 then
  return {"closed"}
elseif state.state == "cancelling" then
  return {"cancelling", summary(state)}
end
local row, chunks = redis.call("HMGET", request, "handed", "open_until"), chain_of()
local cursor = row[1] or "0-0"
if cursor ~= since then
  return {"moved", cursor, queued_tokens(state, now), chunks}
end
if #ARGV < bodies and since == upto and tonumber(row[2]) > now + open_ms / 2 then
  return {"ok", {}, chunks}
end
local tokens = add_chunk(state, now, ARGV, bodies, "chunks", chunks + 1, "handed", upto, "open_until", now + open_ms)
return {"ok", tokens, chunks + 1}
