-- hand_over: adds what other requests have finished to an open request, and moves the cursor over it in the same call.
-- So a second hand-over of the same bodies, by a repeat or by another leader, finds that the cursor has moved. A body whose
-- index is here is left out.
-- Without bodies, and if the cursor stays, it only keeps the request from being given up; with 0 for open_ms it lets
-- the next reap give it up.
-- Says: ok tokens chunks | moved cursor tokens chunks | closed | cancelling summary | ended summary | gone
-- @flags grows
-- @include lib/request_keys.lua
local handed = KEYS[11]  -- fed:{id}  string  a bit for each index that is here
local now = ARGV[1]  -- ms, "" = server time
local since = ARGV[2]  -- the cursor: the last entry of each other request that is here, with commas; 0-0 = there is none
local upto = ARGV[3]  -- the last entries that these bodies are from
local open_ms = tonumber(ARGV[4])  -- ms until the request may be taken for abandoned
local bodies = 5  -- ARGV[5...]  index and body, in turn
-- @include lib/core.lua
-- @include lib/entries.lua
-- @include lib/append.lua
-- @include lib/flows.lua

-- Returns the refusal of what is no list of pairs, or nil.
local function pairs_error(list, first)
  if (#list - first) % 2 == 0 or #list >= first + 2 * MAX_ENTRIES then
    return redis.error_reply("BADARGUMENT hand_over wants at most " .. MAX_ENTRIES .. " pairs of an index and a body")
  end
  for i = first, #list, 2 do
    if not string.find(list[i], "^%d+$") or tonumber(list[i]) > MOST_INDEX then
      return redis.error_reply("BADARGUMENT the index of a body is a whole number below 2^32")
    end
  end
end

local refused = feed_error(since, upto, open_ms) or pairs_error(ARGV, bodies)
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
if state.total == 0 and #ARGV >= bodies then
  redis.call("UNLINK", handed)  -- of a former life
end
local new, indexes, met = {}, {}, {}
for i = bodies, #ARGV, 2 do
  local index = ARGV[i]
  if not met[index] and not is_handed(index) then
    met[index] = true
    new[#new + 1], indexes[#indexes + 1] = ARGV[i + 1], index
  end
end
prove_handed(indexes[1])
local tokens = add_chunk(state, now, new, 1, "chunks", chunks + 1, "handed", upto, "open_until", now + open_ms)
note_handed(indexes)
return {"ok", tokens, chunks + 1}
