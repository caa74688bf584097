package compat;

import org.apache.commons.lang3.StringUtils;

/**
 * What Java's parsing makes of each char: one character of the answer for each of the 65,536.
 */
public class Characters {
    /** The digit that Integer, Long and Short all parse it as; '-' if all refuse it, '?' if they differ. */
    public String digits() {
        StringBuilder found = new StringBuilder();
        for (int unit = 0; unit <= Character.MAX_VALUE; unit++) {
            String text = String.valueOf((char) unit);
            long number;
            try {
                number = Integer.parseInt(text);
            } catch (NumberFormatException error) {
                number = -1;
            }
            found.append(sameElsewhere(text, number) ? number < 0 ? "-" : Long.toString(number) : "?");
        }
        return found.toString();
    }

    private static boolean sameElsewhere(String text, long number) {
        try {
            return Long.parseLong("-" + text) == -number && Short.parseShort("+" + text) == number;
        } catch (NumberFormatException error) {
            return number < 0;
        }
    }

    /** Whether the store takes it for blank: 'b' or '-'. */
    public String blanks() {
        StringBuilder found = new StringBuilder();
        for (int unit = 0; unit <= Character.MAX_VALUE; unit++) {
            found.append(StringUtils.isBlank(String.valueOf((char) unit)) ? 'b' : '-');
        }
        return found.toString();
    }
}
