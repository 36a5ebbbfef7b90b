-- unstage: deletes staging areas that are not needed, unless their transaction is pinned: then nothing happens.
-- Says: ok area_count | pinned
-- @flags allow-oom
local record = KEYS[1]  -- txn:{id}:<txn>  hash  manifest, position, rolled, state
local areas = 2  -- KEYS[2...]  stage:{id}:<txn>:<area>
local keep = ARGV[1]  -- "1": the manifest does not name these areas, so they are deleted in any case

if keep ~= "0" and keep ~= "1" then
  return redis.error_reply("BADARGUMENT unstage wants 0 or 1 for keep")
end
if keep == "0" and redis.call("HEXISTS", record, "manifest") == 1 then
  return {"pinned"}
end
local count = 0
for i = 0, #KEYS - areas do
  count = count + redis.call("UNLINK", KEYS[areas + i])
end
return {"ok", count}
