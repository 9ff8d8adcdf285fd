/* Classes of Unicode characters, as the regular expression of GPT-2's tokenizer names them. */
#ifndef DM_UNICODE_H
#define DM_UNICODE_H

#include "base/base.h"

typedef enum dm_CharClass {
  DM_CHAR_LETTER = 1, /* \p{L}: the general categories Lu, Ll, Lt, Lm and Lo */
  DM_CHAR_NUMBER,     /* \p{N}: Nd, Nl and No */
  DM_CHAR_SPACE,      /* \s: the property White_Space */
  DM_CHAR_OTHER       /* the others, and what Unicode does not assign */
} dm_CharClass;

/* The class of a code point. A build without utf8proc gives DM_EIO. */
DM_API dm_status dm_char_class(dm_CharClass *out, int32_t code);

#endif
