"""What a number of people needs: `midstream size`."""
