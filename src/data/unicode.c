/* Asks utf8proc, which this file alone knows, for the general category of a character:
   Unicode Standard Annex 44, table 12. */
#include "data/unicode.h"

#include "base/error.h"

#if !DM_HAVE_UTF8PROC

dm_status dm_char_class(dm_CharClass *out, int32_t code) {
  DM_UNUSED(out);
  DM_UNUSED(code);
  return dm_fail(DM_EIO, "this build knows no classes of characters; hint: install utf8proc "
                         "(Debian: libutf8proc-dev) and build again");
}

#else

#include <utf8proc.h>

dm_status dm_char_class(dm_CharClass *out, int32_t code) {
  switch (utf8proc_category(code)) {
  case UTF8PROC_CATEGORY_LU:
  case UTF8PROC_CATEGORY_LL:
  case UTF8PROC_CATEGORY_LT:
  case UTF8PROC_CATEGORY_LM:
  case UTF8PROC_CATEGORY_LO: *out = DM_CHAR_LETTER; break;
  case UTF8PROC_CATEGORY_ND:
  case UTF8PROC_CATEGORY_NL:
  case UTF8PROC_CATEGORY_NO: *out = DM_CHAR_NUMBER; break;
  case UTF8PROC_CATEGORY_ZS:
  case UTF8PROC_CATEGORY_ZL:
  case UTF8PROC_CATEGORY_ZP: *out = DM_CHAR_SPACE; break;
  default: /* of control characters, those that White_Space has */
    *out = (code >= '\t' && code <= '\r') || code == 0x85 ? DM_CHAR_SPACE : DM_CHAR_OTHER;
  }
  return DM_OK;
}

#endif
