-- change_shared: changes the state that the steps of a flow share, beside the request of its first step. It lives as long as
-- that request. A caller makes one change after the other, each with a higher number: a repeat gets the first reply again,
-- and a copy that comes late changes nothing.
-- Says: ok text | other text | kind text | full text | late | gone
--   ok = done, and the new value of an addition; other = the value is not the expected one, "" = there is none
--   kind = the value is no whole number, and cannot be added to
-- @flags grows
-- @include lib/core/request_keys.lua
local shared = KEYS[10]  -- flow:{id}  hash  v:name -> value; c:caller -> its last change; bytes and names: how large it is; born: of the request
local now = ARGV[1]  -- ms, "" = server time
local caller = ARGV[2]  -- who makes one change after the other
local number = tonumber(ARGV[3])  -- of this change; each is higher than the one before
local how = ARGV[4]  -- set | add | swap | drop, or keep: only gives the state the life of the request
local field = ARGV[5]  -- of the value
local value = ARGV[6]  -- JSON; add: a whole number
local expected = ARGV[7]  -- swap: the value that is there, "" = none
local most_names = tonumber(ARGV[8])  -- of one flow
local most_bytes = tonumber(ARGV[9])  -- of all names and values
-- @include lib/core/now_ms.lua
-- @include lib/core/state.lua
-- @include lib/flows/shared.lua

if not number or not most_names or not most_bytes or not CHANGES[how] then
  return redis.error_reply("BADARGUMENT change_shared wants a number, a change, and two bounds")
end
local state = redis.call("HEXISTS", request, "flow") == 1 and load_state()
if not state then
  return {"gone"}
end
local born = string.format("%.0f", state.born)
drop_other_life(born)
local word, text = "ok", ""
if how ~= "keep" then
  now = now_ms(now)
  local was = redis.call("HGET", shared, "c:" .. caller)
  local last, before, said = string.match(was or "", "^(%d+):%d+:(%l+):(.*)$")
  if last and tonumber(last) >= number then
    if tonumber(last) > number then
      return {"late"}
    end
    return {before, before == "ok" and said or redis.call("HGET", shared, "v:" .. field) or ""}
  end
  word, text = change(how, field, value, expected, most_names, most_bytes)
  note_caller(caller, string.format("%d:%.0f:%s:%s", number, now, word, word == "ok" and text or ""), not was, now, born)
end
expire_with_request(state)
return {word, text}
