-- Statistics by task: how many calls ended lately, and whose code they ran.
-- Needs lib/core.lua.

-- ------------------------------------------------------------------ fields

-- Adds to a number of the statistics; of a maximum, keeps the larger one.
local function add_measured(stats, field, number)
  if string.sub(field, -4) ~= ":max" then
    redis.call("HINCRBY", stats, field, number)
  elseif tonumber(number) > tonumber(redis.call("HGET", stats, field) or -1) then
    redis.call("HSET", stats, field, number)
  end
end

-- A field "<task>:calls" has the minute of the last calls, the calls and failures of that minute, and of the minute before.
local function lately_with(found, minute, calls, failed)
  local last, c1, f1, c2, f2 = string.match(found or "", "^(%d+) (%d+) (%d+) (%d+) (%d+)$")
  local age = minute - (tonumber(last) or 0)
  if age == 0 then
    calls, failed = calls + c1, failed + f1
  elseif age == 1 then
    c2, f2 = c1, f1
  else
    c2, f2 = 0, 0
  end
  return string.format("%d %d %d %d %d", minute, calls, failed, c2, f2)
end

-- ------------------------------------------------------------------ releases

-- The field `releases` of a queue's conf: the last releases of the users' code, each with the time of its first worker, oldest
-- first. Statistics by task are by release, too, in fields "<task>\t<release>:<what>". Those of a release that is not among
-- the last ones any more are added to those of its tasks.
local RELEASES = 3

-- Notes the release of a worker; returns 1 if it is new.
local function note_release(conf, stats, release, now)
  local kept = {}
  for name, at in string.gmatch(redis.call("HGET", conf, "releases") or "", "(%S+) (%d+)") do
    if name == release then
      return 0
    end
    kept[#kept + 1] = {name, at}
  end
  kept[#kept + 1] = {release, string.format("%.0f", now)}
  while #kept > RELEASES do
    table.remove(kept, 1)
  end
  local texts, is_kept = {}, {}
  for i = 1, #kept do
    texts[i] = kept[i][1] .. " " .. kept[i][2]
    is_kept[kept[i][1]] = true
  end
  redis.call("HSET", conf, "releases", table.concat(texts, " "))
  local found = redis.call("HGETALL", stats)
  for i = 1, #found, 2 do
    local task, of, what = string.match(found[i], "^([^\t]*)\t([^:]*)(:.*)$")
    if task and not is_kept[of] then
      if what ~= ":calls" then
        add_measured(stats, task .. what, found[i + 1])
      elseif redis.call("HEXISTS", stats, task .. what) == 0 then
        redis.call("HSET", stats, task .. what, "0 0 0 0 0")
      end
      redis.call("HDEL", stats, found[i])
    end
  end
  return 1
end
