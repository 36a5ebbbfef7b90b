-- append_unique: adds sub-requests with ids of their own to an open request, each id once: the first one stays.
-- A repeat adds nothing, also after the seal and after the end.
-- Says: ok tokens added waiting | closed | ended summary | gone
-- @flags grows
-- @include lib/request_keys.lua
local ids = KEYS[11]  -- ids:{id}  set  the ids of the sub-requests that were added
local now = ARGV[1]  -- ms, "" = server time
local open_ms = tonumber(ARGV[2])  -- ms until the request may be taken for abandoned
local ttl = tonumber(ARGV[3])  -- ms that the ids stay after the last one
local given = ARGV[4]  -- the ids, packed: count, lengths, ids
local packed = ARGV[5]  -- as many sub-requests, packed
local keep = ARGV[6]  -- "1": results show the bodies, too
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/ids.lua
-- @include lib/append.lua

if not open_ms or not ttl or ttl < 1 then
  return redis.error_reply("BADARGUMENT append_unique wants numbers for open_ms and ttl")
end
local own, bodies = unpacked(given), unpacked(packed)
if not own or not bodies or #own ~= #bodies then
  return bad_packing()
end
local state, over = load_unfinished()
local is_anew = state ~= nil and state.total == 0  -- whatever ids there are belong to another life
local wanted, new = new_ones(not is_anew and ids, own, bodies, 1)
local early = answer_early(state, over, wanted)
if early then
  return early
end
now = now_ms(now)
if #wanted > 0 then
  if is_anew then
    redis.call("UNLINK", ids)
  end
  keep_rows(state, new, wanted, keep)
  with_ids(ids, new, ttl, grow, state, now, open_ms, wanted)
end
return answer_grown(state, now, wanted)
