-- drop_dead: forgets dead sub-requests and their bodies; counts and results stay. If `id` names a new request, which has
-- final claims (claim_dead), only those are dropped that it has claimed. If `id` is "", those are dropped on which no
-- claim is final, and the texts of their errors. The caller names no more than it would read: see DEAD_BYTES. When the new request has no claim left, its mark is deleted.
-- Says: ok dropped held
--   held = how many stay, because other requests have claimed them
-- @flags allow-oom
-- @include lib/request_keys.lua
local id = ARGV[1]  -- the new request, "" = the bodies are not wanted any more
local keep = tonumber(ARGV[2])  -- how many of the ids, from the first on, stay and only lose their claim
local ids = 3  -- ARGV[3...]  dead entries, at most 1,000
-- @include lib/dead_letters.lua

local refused = ids_error(ARGV, ids)
if refused then
  return refused
end
if not keep or keep < 0 or (id == "" and keep > 0) then
  return redis.error_reply("BADARGUMENT drop_dead wants a number of ids to keep, 0 without a new request")
end
local dropped, held = 0, 0
for i = ids, #ARGV do
  local owner = owner_of(ARGV[i])
  local is_free = not owner or not is_final(owner)
  if owner == id or (id == "" and is_free) then
    if i - ids >= keep then
      local entry = id == "" and redis.call("XRANGE", dead, ARGV[i], ARGV[i])[1]
      dropped = dropped + redis.call("XDEL", dead, ARGV[i])
      if entry then
        forget_error(fields_of(entry).error)
      end
    end
    if owner then
      redis.call("XACK", dead, CLAIMS, ARGV[i])
    end
  elseif not is_free then
    held = held + 1
  end
end
if claimed_by(id) == 0 then  -- always true for the id "", which has no mark either
  redis.call("HDEL", request, FINAL .. id)
  redis.pcall("XGROUP", "DELCONSUMER", dead, CLAIMS, id)
end
return {"ok", dropped, held}
