-- hand_over: adds what other requests have finished to an open request, and moves the cursor over it in the same call.
-- So a second hand-over of the same bodies, by a repeat or by another leader, finds that the cursor has moved.
-- Without bodies, and if the cursor stays, it only keeps the request from being given up; with 0 for open_ms it lets
-- the next reap give it up.
-- Says: ok tokens chunks | moved cursor tokens chunks | closed | cancelling summary | ended summary | gone
-- @flags grows
-- @include lib/core/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local since = ARGV[2]  -- the cursor: the last entry of each other request that is here, with commas; 0-0 = there is none
local upto = ARGV[3]  -- the last entries that these bodies are from
local open_ms = tonumber(ARGV[4])  -- ms until the request may be taken for abandoned
local bodies = 5  -- ARGV[5...]  the sub-requests
-- @include lib/core/now_ms.lua
-- @include lib/flows/open_end.lua
-- @include lib/core/finish.lua
-- @include lib/create/add_chunk.lua

local refused = feed_error(since, upto, open_ms) or entry_error(bodies, #ARGV)
if refused then
  return refused
end
now = now_ms(now)
local state, chunks, open_until = open_end(since, now)
if not state then
  return chunks
end
if #ARGV < bodies and since == upto and open_ms > 0 and open_until > now + open_ms / 2 then
  return {"ok", {}, chunks}
end
local tokens = add_chunk(state, now, ARGV, bodies, "chunks", chunks + 1, "handed", upto, "open_until", now + open_ms)
return {"ok", tokens, chunks + 1}
