"""What a number of users needs: `midstream size`."""
