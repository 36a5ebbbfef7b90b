-- change_shared: changes the state that the steps of a flow share, in the hash of its first step's request. A caller makes one
-- change after the other, each with a higher number: a repeat gets the first reply again, and a copy that comes late
-- changes nothing.
-- Says: ok text | other text | kind text | full text | late | gone
--   ok = done, and the new value of an addition; other = the value is not the expected one, "" = there is none
--   kind = the value is no whole number, and cannot be added to
--   gone: there is no such step, or it has ended and keeps nothing
-- @flags grows
-- @include lib/request_keys.lua
local now = ARGV[1]  -- ms, "" = server time
local caller = ARGV[2]  -- who makes one change after the other
local number = tonumber(ARGV[3])  -- of this change; each is higher than the one before
local how = ARGV[4]  -- set | add | swap | drop
local field = ARGV[5]  -- of the value
local value = ARGV[6]  -- JSON; add: a whole number
local expected = ARGV[7]  -- swap: the value that is there, "" = none
local most_names = tonumber(ARGV[8])  -- of one flow
local most_bytes = tonumber(ARGV[9])  -- of all names and values
-- @include lib/core.lua
-- @include lib/state.lua
-- @include lib/flows.lua

if not number or not most_names or not most_bytes or not CHANGES[how] then
  return redis.error_reply("BADARGUMENT change_shared wants a number, a change, and two bounds")
end
local state = load_state()
local row = redis.call("HMGET", request, "flow", "shared", "c:" .. caller)
if not state or not row[1] or is_ended(state) and state.retain_ms == 0 then
  return {"gone"}
end
now = now_ms(now)
local last, before, said = string.match(row[3] or "", "^(%d+):%d+:(%l+):(.*)$")
if last and tonumber(last) >= number then
  if tonumber(last) > number then
    return {"late"}
  end
  return {before, before == "ok" and said or redis.call("HGET", request, "v:" .. field) or ""}
end
local sizes = sizes_of(row[2])
local word, text = change(how, field, value, expected, sizes, {names = most_names, bytes = most_bytes})
note_caller(caller, string.format("%d:%.0f:%s:%s", number, now, word, word == "ok" and text or ""), not row[3], sizes, now)
return {word, text}
